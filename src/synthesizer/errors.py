"""The one exception a user is meant to read, and the kind of it that ends a whole comparison."""


class UserError(ValueError):
    """A mistake the user can fix: one line with what was found, what was expected, what to do."""


class OtherDataError(UserError):
    """The data are not those that a run or a comparison began with."""


def refuse_other_data(begun: object, before: str, now: str) -> None:
    """Stop what would go on with other data than it began with, by their identities."""
    if before != now:
        raise OtherDataError(
            f"{begun} began with other data (identity {before[:12]}, now {now[:12]}); restore "
            "them, choose another --out, or delete the directory to begin again"
        )
