"""A language model of antibodies as a folder, and sequences to audit it on.

    pip install --no-deps antiberty==0.1.3 airrship==0.1.5
    python tools/antibodies.py antibodies

AntiBERTy is a BERT trained on observed antibodies; its package holds weights and no tokenizer that
transformers reads. airrship draws human heavy chains from germline genes and measured rates of
recombination and mutation.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM
from transformers import PreTrainedTokenizerFast as Fast

BASES = "TCAG"
AMINO = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODONS = dict(zip((a + b + c for a in BASES for b in BASES for c in BASES), AMINO, strict=True))
DRAWN = 6000
DRAW = "import airrship.create_repertoire as drawn; drawn.main()"


def main(out: Path) -> None:
    """Write antiberty/ and heavy.txt."""
    out.mkdir(parents=True, exist_ok=True)
    options = ["-o", "drawn", "--outdir", f"{out}/", "-n", str(DRAWN), "--shm", "--seed", "1"]
    subprocess.run([sys.executable, "-c", DRAW, *options], check=True)
    chains = dict.fromkeys(filter(None, map(translated, fasta(out / "drawn.fasta"))))
    (out / "heavy.txt").write_text("".join(f"{chain}\n" for chain in chains))
    print(f"{len(chains)} heavy chains")

    bert, config = weights("antiberty", "AntiBERTy_md_smooth")
    masked = BertForMaskedLM(BertConfig(**config))
    heads = ("cls.species", "cls.chain", "cls.graft", "bert.pooler", "bert.embeddings.position_ids")
    masked.load_state_dict({k: v for k, v in bert.items() if not k.startswith(heads)})
    masked.save_pretrained(out / "antiberty")
    tokenizer("antiberty", "[CLS]", cls_token="[CLS]", mask_token="[MASK]").save_pretrained(
        out / "antiberty"
    )


def fasta(path: Path) -> list[str]:
    """The sequences of a file of nucleotides."""
    return ["".join(part.split("\n")[1:]) for part in path.read_text().split(">")[1:]]


def translated(bases: str) -> str:
    """A chain of amino acids, or nothing where it stops or a codon is not known."""
    codons = (bases[at : at + 3].upper() for at in range(0, len(bases) // 3 * 3, 3))
    chain = "".join(CODONS.get(codon, "*") for codon in codons)
    return "" if "*" in chain else chain


def weights(package: str, name: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The tensors and the sizes of a checkpoint inside a package, none of whose code is run."""
    folder = trained(package) / name
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    config = json.loads((folder / "config.json").read_text())
    return state, {k: v for k, v in config.items() if k not in ("_name_or_path", "architectures")}


def trained(package: str) -> Path:
    """The folder of a package's models."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is not installed; {__doc__.splitlines()[2].strip()}")
    return Path(spec.submodule_search_locations[0]) / "trained_models"


def tokenizer(package: str, first: str, **special: str) -> Fast:
    """One token a residue; with `first` also before a chain, and [SEP] behind it."""
    names = (trained(package) / "vocab.txt").read_text().split()
    ids = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.add_special_tokens([name for name in names if name.startswith("[")])
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if first:
        pair = [(name, ids[name]) for name in (first, "[SEP]")]
        made.post_processor = processors.TemplateProcessing(f"{first} $A [SEP]", None, pair)
    told = {"pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]", **special}
    return Fast(tokenizer_object=made, **told)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
