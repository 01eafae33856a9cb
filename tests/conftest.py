import pytest


@pytest.fixture(autouse=True)
def _own_data_folders(tmp_path, monkeypatch):
    """No test reads or fills the user's caches."""
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SYNTHESIZER_DATA", raising=False)
