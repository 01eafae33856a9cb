import pytest
import torch

from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import SynthesizerForConditionalGeneration
from synthesizer_attention.spec import PRESETS

MT = {"num_layers": 6, "d_model": 512, "num_heads": 8, "max_len": 256}


def count(spec: str) -> int:
    """Parameters of the paper's base translation model, embeddings aside."""
    with torch.device("meta"):
        config = SynthesizerConfig.preset("mt-base", vocab_size=1, synthesis=spec)
        model = SynthesizerForConditionalGeneration(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def counts():
    return {spec: count(spec) for spec in ("V", "Fix", "R", "FR", "D", "FD", "R+D", "D+V", "R+V")}


def test_table_2_differences_come_out(counts):
    mix = 12 * 8 * 2
    assert counts["R"] - counts["Fix"] == 12 * 8 * 256**2  # 6.29M
    assert counts["R+V"] - counts["R"] == 12 * 2 * 512**2 + mix  # 6.29M
    assert counts["V"] - counts["Fix"] == 12 * 2 * 512**2


def test_table_2_totals_come_out_once_the_embedding_is_solved_from_the_baseline(counts):
    embedding = 67e6 - counts["V"]
    total = {spec: (count + embedding) / 1e6 for spec, count in counts.items()}
    assert round(total["Fix"]) == 61
    assert round(total["FR"]) == 61
    assert round(total["R"]) == 67
    assert round(total["R+V"]) == 73


def test_the_rows_that_table_1_cannot_give_are_as_documented(counts):
    """Biases aside; docs/paper.md shows the arithmetic beside the printed 62, 61, 67 and 74."""
    embedding = 67e6 - counts["V"]
    dense_biases = 12 * (512 + 8 * 256)
    factorized_biases = 12 * (512 + 8 * 32)
    mix = 12 * 8 * 2
    assert (counts["D"] + embedding - dense_biases) / 1e6 == pytest.approx(65.4, abs=0.05)
    assert (counts["FD"] + embedding - factorized_biases) / 1e6 == pytest.approx(64.05, abs=0.01)
    for spec in ("R+D", "D+V"):
        total = (counts[spec] + embedding - dense_biases - mix) / 1e6
        assert total == pytest.approx(71.7, abs=0.05)


def test_dense_on_each_heads_own_slice_has_the_printed_sizes(counts):
    """Printed are 62M and 61M; biases aside."""
    bare = 67e6 - counts["V"] + counts["Fix"]
    per_head = {"dense": 64**2 + 64 * 256, "factorized_dense": 64**2 + 64 * (16 + 16)}
    for (name, each), printed in zip(per_head.items(), (62.7, 61.3), strict=True):
        biases = 12 * 8 * (64 + (256 if name == "dense" else 32))
        added = count(f"{name}:input=head") - counts["Fix"]
        assert added == 12 * 8 * each + biases
        assert round((bare + added - biases) / 1e6, 1) == printed
    shared = count("dense:share=1") - counts["Fix"]
    assert shared == 12 * (512**2 + 64 * 256 + 512 + 256)  # the authors' code, with biases


def test_presets_are_the_papers_sizes():
    t5 = SynthesizerConfig.preset("t5-base")
    assert (t5.d_model, t5.num_layers, t5.num_decoder_layers, t5.max_len) == (768, 12, 12, 512)
    small = SynthesizerConfig.preset("t5-small")
    assert (small.d_model, small.num_heads, small.num_layers, small.d_ff) == (512, 8, 6, 2048)
    assert (small.norm, small.positions) == (t5.norm, t5.positions)
    mt = SynthesizerConfig.preset("mt-base", synthesis="R+V", vocab_size=100)
    assert (mt.d_model, mt.num_heads, mt.max_len, mt.vocab_size) == (512, 8, 256, 100)
    assert mt.synthesis == "random+dot"
    assert "laptop" in PRESETS


def test_a_config_round_trips_through_its_dict():
    config = SynthesizerConfig(kind="encoder_decoder", synthesis="FD", decoder_max_len=90)
    assert config.synthesis == "factorized_dense:a=16:b=16"
    assert config.decoder_synthesis == "factorized_dense:a=10:b=9"
    again = SynthesizerConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()


def test_hugging_face_names_read_ours():
    config = SynthesizerConfig(d_model=64, num_heads=4, max_len=33)
    assert config.hidden_size == 64
    assert config.max_position_embeddings == 33


def test_a_config_names_no_code_of_others_where_trainers_look_for_it():
    """TRL reads config.auto_map of every architecture that transformers itself does not have."""
    config = SynthesizerConfig(kind="decoder")
    assert not config.auto_map
    assert "auto_map" not in config.to_dict()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"norm": "batch"}, "norm='batch'; choose from layer, rms"),
        ({"norm_position": "mid"}, "norm_position='mid'; choose from pre, post"),
        ({"activation": "tanh"}, "activation='tanh'; choose from relu, gelu"),
        ({"positions": "spiral"}, "positions='spiral'; choose from sinusoidal, learned, relative"),
        ({"pooling": "max"}, "pooling='max'; choose from cls, mean"),
        ({"kind": "prefix"}, "kind='prefix'; choose from decoder, encoder, encoder_decoder"),
        ({"kind": "decoder", "synthesis": "dence"}, "unknown synthesis 'dence'"),
        ({"kind": "decoder", "d_model": 10}, "d_model=10 does not divide into num_heads=8"),
        (
            {"kind": "decoder", "synthesis": "random*2,dot"},
            "synthesis 'random*2,dot' names 3 layers but the model has 6",
        ),
    ],
)
def test_a_bad_setting_is_named_with_its_choices(settings, text):
    with pytest.raises(UserError) as error:
        SynthesizerConfig(**settings)
    assert text in str(error.value)


def test_a_type_error_is_hugging_faces_own_and_names_the_field():
    with pytest.raises(Exception, match="d_model"):
        SynthesizerConfig(d_model="wide")


def test_an_unknown_preset_is_named():
    with pytest.raises(UserError, match="unknown preset 'huge'; choose from mt-base, t5-base"):
        SynthesizerConfig.preset("huge")
