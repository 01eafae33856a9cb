"""Every key of a recipe by section, with its default and what it may be; and the tasks there are.

Defaults live here and nowhere else.
"""

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from synthesizer_attention import spec
from synthesizer_attention.errors import UserError

Kind = Literal["encoder_decoder", "decoder", "encoder"]


class TaskInfo(NamedTuple):
    """What a recipe knows of a task; the task itself is in tasks/<shape>.py."""

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
_SIZE = spec.RECIPE_DEFAULTS

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
        spec.parse_positions(text)
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

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Data(Part):
    """Where examples come from: the first that is set of files, builtin, local and hub."""

    train: Files | None = None
    """A file, a directory of text, or parallel files (train.en, train.de)."""
    validation: Files | None = None
    """Validation examples, as train; cut from train where absent."""
    test: Files | None = None
    """Test examples, as train; cut from train where absent."""
    builtin: str | None = None
    """A built-in corpus: python-docs, grammar-ende, listops, shift, recall, ..."""
    difficulty: Positive | None = None
    """Difficulty of a graded probe; the probe's own default if absent."""
    local: Files | None = None
    """Directories under SYNTHESIZER_DATA; the first that exists is used."""
    hub: str | None = None
    """A data set of the Hugging Face hub."""
    config: str | None = None
    """Its configuration."""
    revision: str | None = None
    """Its branch, tag or commit."""
    splits: dict[str, Files] = {}
    """Names of the set's own splits: {train = "...", test = ["...", "..."]}; several are joined."""
    tasks: tuple[str, ...] = ()
    """The tasks of a text_to_text mixture."""
    cap: Positive = 2**21
    """A task of a mixture counts as at most this many examples."""
    wording: Literal["ours", "t5"] = "ours"
    """Wording of a mixture's prompts and answers."""
    columns: dict[str, Column] = {}
    """Column of each role; the missing ones are inferred and reported."""
    labels: tuple[str, ...] = ()
    """Label names in the order of their numbers; inferred if empty."""
    header: bool | None = None
    """Whether a csv or tsv file has a header; inferred if absent."""
    prefix: str = ""
    """Text written before every source."""
    keep_blank: bool = False
    """Keep empty documents, such as WikiText's blank lines."""
    article_start: Pattern | None = None
    """Regular expression of the first row of an article: its rows are one unit of a verdict."""
    streaming: bool = False
    """Read train block by block instead of at once."""
    sample: Positive = 4096
    """With streaming: documents for the tokenizer and the held-out splits."""
    holdout: Share | dict[str, Share] = 0.05
    """Share of train that becomes each missing split; or {validation, test}, in random order."""
    skip_bad: bool = False
    """Skip rows that cannot be read, and count them, instead of stopping."""
    overlong: Literal["truncate", "drop", "error"] = "truncate"
    """What to do with a training example longer than the model."""


class Text(Part):
    """How text becomes token numbers."""

    kind: Literal["bpe", "word", "byte"] = "bpe"
    """Tokens: byte-pair pieces, words or bytes."""
    vocab_size: Width = 8000
    """Tokens of the vocabulary; at most for words."""
    share: Literal["joint", "separate"] = "joint"
    """Learn one vocabulary from both sides, or half of it from each."""
    tokenizer: str | None = None
    """Directory of an existing tokenizer to use instead."""


class Model(Part):
    """The shape of the model, in the words of SynthesizerConfig."""

    kind: Kind | None = None
    """Kind of model; follows from the task."""
    d_model: Width = _SIZE.d_model
    """Model width."""
    num_heads: Width = _SIZE.num_heads
    """Attention heads."""
    num_layers: Layers = _SIZE.num_layers
    """Layers of the encoder, or of a decoder alone."""
    num_decoder_layers: Layers | None = None
    """Decoder layers of an encoder-decoder; as num_layers."""
    d_ff: Width | None = None
    """Feed-forward width; 4 d_model if absent."""
    max_len: Length = _SIZE.max_len
    """Longest sequence, and the size of tables."""
    decoder_max_len: Length | None = None
    """Longest target sequence; as max_len."""
    norm: spec.Norm = _SIZE.norm
    """Normalization."""
    norm_position: spec.NormPosition = _SIZE.norm_position
    """Normalize before (pre) or after (post) each sublayer."""
    activation: spec.Activation = _SIZE.activation
    """Activation of the feed-forward layers."""
    positions: Annotated[str, AfterValidator(_known_positions)] = _SIZE.positions
    """Position encodings, joined by +: none, sinusoidal, learned, relative, rotary, alibi."""
    tie_word_embeddings: bool = _SIZE.tie_word_embeddings
    """Use the input embeddings as output weights."""
    dropout: Share = _SIZE.dropout
    """Dropout of embeddings and sublayers."""
    attention_dropout: Share = _SIZE.attention_dropout
    """Dropout of attention weights."""
    pooling: spec.Pooling = _SIZE.pooling
    """What a classifier reads: the first token or the mean."""
    window: Positive | str | None = _SIZE.window
    """Tokens that self-attention sees to either side; all if absent."""
    equal_qk_init: bool = _SIZE.equal_qk_init
    """Dot products start with Wk = Wq."""
    universal: bool = _SIZE.universal
    """Use one layer's weights at every depth (Universal Transformer)."""
    fixed_depth: bool = _SIZE.fixed_depth
    """Universal: every token takes all steps."""
    halting_epsilon: Annotated[float, Field(gt=0, lt=1)] = _SIZE.halting_epsilon
    """Universal: a token stops when 1 - epsilon of its halting probability is spent."""
    ponder_cost: Annotated[float, Field(ge=0)] = _SIZE.ponder_cost
    """Universal: weight of the number of steps in the loss."""


class Train(Part):
    """How long and how the model is trained."""

    steps: Annotated[int, Field(gt=0, le=10**9)] = 1000
    """Optimizer steps."""
    batch_tokens: Positive = 4096
    """Padded tokens of one batch over all processes."""
    accumulate: Annotated[int, Field(gt=0, le=2**16)] = 1
    """Batches per step."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Highest learning rate, reached at the end of warm-up."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """Learning-rate schedule after warm-up."""
    warmup: Annotated[int, Field(ge=0)] = 100
    """Steps of linear warm-up."""
    optimizer: Literal["adam", "adamw", "adafactor"] = "adamw"
    """Optimizer."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    """Adam's betas."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """Adam's epsilon."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay; tables, biases and norms have none."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 is off."""
    label_smoothing: Share = 0.0
    """Label smoothing."""
    table_rate: Annotated[float, Field(gt=0)] = 30.0
    """The learning rate of tables and mixture weights is this times lr."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """float32, or bfloat16 by autocast; auto times a step of each and keeps the faster one."""
    compile: bool = False
    """Compile the model with torch.compile."""
    data_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of train to use, always the same examples."""
    start_from: str | None = None
    """A run whose weights to begin with; {synthesis} and {seed} are this run's own."""
    log_every: Positive = 50
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: Positive = 500
    """Steps between checkpoints."""
    keep: Positive = 2
    """Checkpoints to keep."""
    average: Annotated[int, Field(ge=0)] = 0
    """Average the last so many checkpoints; 0 is off."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Stop after so many evaluations without improvement; 0 is off."""


class Evaluate(Part):
    """How the model is measured."""

    every: Positive = 500
    """Steps between evaluations on validation."""
    limit: Positive | None = None
    """Validation examples to use, of each set of a mixture; test is whole."""
    batch_tokens: Positive = 8192
    """Padded tokens of one batch."""
    beam: Annotated[int, Field(gt=0, le=1024)] = 4
    """Beams; 1 is greedy."""
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 0.6
    """The alpha of the length penalty."""
    length_penalty_form: Literal["power", "wu"] = "power"
    """power is length^alpha, wu is ((5 + length) / 6)^alpha."""
    max_new_tokens: Positive | None = None
    """Longest answer; as decoder_max_len."""
    samples: Annotated[int, Field(ge=0)] = 5
    """Test examples shown in samples.txt."""
