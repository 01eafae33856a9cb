"""The reference and the site: every parameter of the public API is described, links are found."""

import inspect
import re
from pathlib import Path

import pytest

import site_pages
import synthesizer_attention

HOME = Path(__file__).parents[1]
PUBLIC = {name: getattr(synthesizer_attention, name) for name in synthesizer_attention.__all__}
CALLED = {name: one for name, one in PUBLIC.items() if not isinstance(one, dict)}


def own_parameters(one):
    """Those that we name, not those of a class of torch or Hugging Face."""
    if one is synthesizer_attention.SynthesizerConfig:  # a dataclass, which inherits others
        return [name for name in vars(one)["__annotations__"] if name != "auto_map"]
    if inspect.isclass(one):
        made = getattr(one.__init__, "__module__", "")
        if not made.startswith("synthesizer_attention"):
            return []
    names = inspect.signature(one).parameters
    return [name for name in names if name != "self"]


def described(doc):
    """The names in the section Args of a docstring in Google style, each with its words."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.cleandoc(doc), re.MULTILINE)
    return re.findall(r"^    (\w+): \S", section[1] if section else "", re.MULTILINE)


@pytest.mark.parametrize("name", CALLED)
def test_a_docstring_describes_every_parameter_in_order_and_no_other(name):
    one = CALLED[name]
    assert described(one.__doc__) == own_parameters(one)
    if "forward" in dir(one) and name in ("SyntheticAttention", "CrossAttention", "Synthesis"):
        names = [*inspect.signature(one.forward).parameters][1:]
        assert described(one.forward.__doc__) == names


def test_the_reference_names_all_that_is_public():
    page = (HOME / "docs" / "api.md").read_text()
    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", page)] == []


def test_broken_links_and_remote_assets_are_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="sub/b.html#there">x</a><a href="https://a.b/">far</a>'
        '<a href="c.html">gone</a><a href="sub/b.html#nowhere">x</a>'
        '<script src="https://a.b/c.js"></script>'
    )
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="../a.html#top">x</a>')
    assert sorted(site_pages.broken_links(tmp_path)) == [
        "a.html links to c.html",
        "a.html links to sub/b.html#nowhere",
        "a.html loads https://a.b/c.js",
    ]


def test_a_link_of_a_page_leads_to_the_page_of_the_site_or_to_the_repository(monkeypatch):
    pages = site_pages.gathered()
    text = "[`a`](../results/shift.md#x) [b](../Makefile) `[c](d)` [e](https://f)"
    page = HOME / "docs" / "compare.md"
    monkeypatch.setattr(site_pages, "address", lambda: "https://host/owner")
    there = "https://host/owner/blob/main/Makefile"
    wanted = f"[`a`](results/shift.md#x) [b]({there}) `[c](d)` [e](https://f)"
    assert site_pages.relinked(text, page, pages) == wanted
    monkeypatch.setattr(site_pages, "address", lambda: "")
    assert " b `" in site_pages.relinked(text, page, pages)
    with pytest.raises(SystemExit, match=r"links to none\.md, which is not there"):
        site_pages.relinked("[a](none.md)", page, pages)
