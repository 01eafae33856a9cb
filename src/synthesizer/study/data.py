"""The data of a study, as far as they are known before a worker reads them (no torch)."""

import platform

from synthesizer import __version__
from synthesizer.data.corpora.corpus_list import describe_corpus
from synthesizer.data.sources import Source, data_folder, open_source
from synthesizer.experiment.recipe import Recipe


def identify(recipe: Recipe, known: Source | None) -> tuple[str, str | None]:
    """What a study's directory is named after, and the identity of the data where that is files.

    Of all else a worker tells the identity before the first run. Data that were read for a guess
    are not opened again, unless the user set others.
    """
    if recipe.data.tasks:
        return "mixture", None
    if recipe.data.builtin and not recipe.data.train:
        return describe_corpus(recipe.data.builtin), None
    source = open_source(recipe.data, data_folder())
    source = known if known and known.origin == source.origin else source
    return source.fingerprint, source.identity if source.has_files else None


def old_names(fingerprint: str) -> tuple[str, str]:
    """What a study of these data has in study.json where it began without their identity."""
    made = f"of synthesizer {__version__} on Python {platform.python_version()}"
    return fingerprint, f"{fingerprint} {made}"
