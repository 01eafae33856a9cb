"""English sentences beside their German: vocabulary.toml holds the words, the files the rules."""
