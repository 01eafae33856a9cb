"""Many runs of one recipe, fairly compared, and what they prove."""
