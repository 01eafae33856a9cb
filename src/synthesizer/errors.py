"""The one exception a user is meant to read."""


class UserError(ValueError):
    """A mistake the user can fix: one line with what was found, what was expected, what to do."""
