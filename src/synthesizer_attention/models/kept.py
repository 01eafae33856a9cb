"""Model folders that know the size and sha256 of their files: those of `synthesizer convert`."""

from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel

from synthesizer_attention.errors import UserError
from synthesizer_attention.manifest import MANIFEST, find_damage

_REMEDY = (
    "restore it from a copy, or write the folder again by synthesizer convert "
    f"(if you changed the file yourself, delete {MANIFEST})"
)


class Kept(PreTrainedModel):
    """A model whose folder is compared with its manifest.json, where it has one."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any  # noqa: ANN401
    ) -> Self:  # fmt: skip
        """As transformers does; files that are not as they were written are refused."""
        folder = Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or "")
        damage = find_damage(folder, ("",))
        if damage is not None:
            raise UserError(f"{folder}: {damage}; {_REMEDY}")
        loaded: Self = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """As transformers does; what a manifest there says of other files is void."""
        Path(save_directory, MANIFEST).unlink(missing_ok=True)
        super().save_pretrained(save_directory, *args, **kwargs)
