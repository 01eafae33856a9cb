"""Every key of a recipe by section, with its default and what it may be; and the tasks there are.

Defaults live here and nowhere else.
"""

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from synthesizer import sizes
from synthesizer.errors import UserError

Kind = Literal["encoder_decoder", "decoder", "encoder"]


class TaskInfo(NamedTuple):
    """What a recipe knows of a task; the task itself is tasks/<name>.py."""

    kind: Kind  # of the model it needs
    shape: Literal["pairs", "mixture", "stream", "probe", "labels"]  # of its examples
    from_file: bool = False  # whether it can be inferred from a user's file


TASKS = {
    "translation": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "summarization": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "dialogue": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "span_corruption": TaskInfo("encoder_decoder", "stream"),
    "principal_sentence": TaskInfo("encoder_decoder", "pairs"),
    "text_to_text": TaskInfo("encoder_decoder", "mixture"),
    "language_modeling": TaskInfo("decoder", "stream", from_file=True),
    "probe": TaskInfo("decoder", "probe"),
    "classification": TaskInfo("encoder", "labels", from_file=True),
}
_SIZE = sizes.RECIPE_DEFAULTS

Positive = Annotated[int, Field(gt=0)]
Layers = Annotated[int, Field(gt=0, le=1024)]
Width = Annotated[int, Field(gt=0, le=2**24)]  # beyond any machine, and products still count
Length = Annotated[int, Field(ge=2, le=2**24)]
Share = Annotated[float, Field(ge=0, lt=1)]
Files = str | tuple[str, ...]
Column = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


def known_task(name: str) -> str:
    """Refuse a task that there is not."""
    if name not in TASKS:
        *others, last = map(repr, TASKS)
        raise PydanticCustomError("task", f"{', '.join(others)} or {last}")
    return name


def _known_positions(text: str) -> str:
    try:
        sizes.parse_positions(text)
    except UserError as error:
        raise PydanticCustomError("positions", "{error}", {"error": str(error)}) from None
    return text


def _valid_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        expected = f"a regular expression ({error})"
        raise PydanticCustomError("pattern", "{expected}", {"expected": expected}) from None
    return text


Pattern = Annotated[str, AfterValidator(_valid_pattern)]


class Part(BaseModel):
    """A recipe or a section of it: frozen, without other keys, each value of its own type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(Part):
    """Where examples come from: the first that is set of files, builtin, local and hub."""

    train: Files | None = (
        None  # a file, a directory of text, or parallel files (train.en, train.de)
    )
    validation: Files | None = None
    test: Files | None = None
    builtin: str | None = None  # a corpus of synthesizer.data.corpora
    difficulty: Positive | None = None  # of a graded probe among them; its own where absent
    local: Files | None = None  # directories under SYNTHESIZER_DATA; the first that exists is used
    hub: str | None = None  # a Hugging Face data set
    config: str | None = None  # which configuration of it
    revision: str | None = None  # which branch, tag or commit of it
    splits: dict[str, str] = {}  # our split -> the set's own name for it
    tasks: tuple[str, ...] = ()  # of a text_to_text mixture
    cap: Positive = 2**21  # a mixture task counts as at most this many examples
    wording: Literal["ours", "t5"] = "ours"  # of a mixture's prompts and answers
    columns: dict[str, Column] = {}  # role -> column; the missing ones are inferred and reported
    labels: tuple[str, ...] = ()  # names in order of their numbers; inferred when empty
    header: bool | None = None  # of csv and tsv; inferred when absent
    prefix: str = ""  # written before every source text
    keep_blank: bool = False  # an empty document is a document, as WikiText's blank lines
    article_start: Pattern | None = None  # rows of one article are one unit of a verdict
    streaming: bool = False  # read train block by block instead of at once
    sample: Positive = 4096  # with streaming: documents that the tokenizer and held-out splits get
    holdout: Share = 0.05  # share of train that each missing split is cut from it
    skip_bad: bool = False
    overlong: Literal["truncate", "drop", "error"] = "truncate"


class Text(Part):
    """How text becomes token numbers."""

    kind: Literal["bpe", "word", "byte"] = "bpe"
    vocab_size: Width = 8000
    share: Literal["joint", "separate"] = "joint"  # learn on both sides, or half from each
    tokenizer: str | None = None  # an existing tokenizer directory instead


class Model(Part):
    """The shape of the model, in the words of SynthesizerConfig."""

    kind: Kind | None = None  # follows from the task
    d_model: Width = _SIZE.d_model
    num_heads: Width = _SIZE.num_heads
    num_layers: Layers = _SIZE.num_layers
    num_decoder_layers: Layers | None = None  # as num_layers
    d_ff: Width | None = None  # 4 d_model
    max_len: Length = _SIZE.max_len
    decoder_max_len: Length | None = None  # as max_len
    norm: sizes.Norm = _SIZE.norm
    norm_position: sizes.NormPosition = _SIZE.norm_position
    activation: sizes.Activation = _SIZE.activation
    positions: Annotated[str, AfterValidator(_known_positions)] = _SIZE.positions
    tie_word_embeddings: bool = _SIZE.tie_word_embeddings
    dropout: Share = _SIZE.dropout
    attention_dropout: Share = _SIZE.attention_dropout
    pooling: sizes.Pooling = _SIZE.pooling
    window: Positive | None = _SIZE.window  # tokens that self-attention sees to either side
    equal_qk_init: bool = _SIZE.equal_qk_init  # dot products start with Wk = Wq
    universal: bool = _SIZE.universal  # one layer's weights at every depth
    fixed_depth: bool = _SIZE.fixed_depth  # of universal: every token takes all steps
    halting_epsilon: Annotated[float, Field(gt=0, lt=1)] = _SIZE.halting_epsilon
    ponder_cost: Annotated[float, Field(ge=0)] = _SIZE.ponder_cost


class Train(Part):
    """How long and how the model is trained."""

    steps: Annotated[int, Field(gt=0, le=10**9)] = 1000
    batch_tokens: Positive = 4096  # padded tokens of one batch over all processes
    accumulate: Annotated[int, Field(gt=0, le=2**16)] = 1  # batches per step
    lr: Annotated[float, Field(gt=0)] = 1e-3  # the highest rate, reached at the end of warm-up
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup: Annotated[int, Field(ge=0)] = 100
    optimizer: Literal["adam", "adamw", "adafactor"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(ge=0)] = 1.0  # of the gradient norm; 0 is off
    label_smoothing: Share = 0.0
    table_rate: Annotated[float, Field(gt=0)] = 30.0  # the tables' rate is this times lr
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    data_share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of train, always the same examples
    start_from: str | None = None  # a run to begin with; {synthesis} and {seed} are this run's own
    log_every: Positive = 50
    checkpoint_every: Positive = 500
    keep: Positive = 2  # checkpoints
    average: Annotated[int, Field(ge=0)] = 0  # the last so many checkpoints; 0 is off
    patience: Annotated[int, Field(ge=0)] = 0  # evaluations without improvement; 0 is off


class Evaluate(Part):
    """How the model is measured."""

    every: Positive = 500
    limit: Positive | None = None  # of validation, or of each set of a mixture; test is whole
    batch_tokens: Positive = 8192
    beam: Annotated[int, Field(gt=0, le=1024)] = 4
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 0.6  # the alpha of:
    length_penalty_form: Literal["power", "wu"] = "power"  # length^alpha, ((5 + length) / 6)^alpha
    max_new_tokens: Positive | None = None  # as decoder_max_len
    samples: Annotated[int, Field(ge=0)] = 5
