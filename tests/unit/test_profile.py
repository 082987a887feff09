import pytest

from workshop_lib.notebook import profile


def test_the_default_is_laptop(monkeypatch):
    monkeypatch.delenv(profile.VARIABLE, raising=False)
    assert profile.current().name == "laptop"


@pytest.mark.parametrize("name", ["quick", "laptop", "cluster"])
def test_a_sweep_can_be_drawn_from_every_profile(monkeypatch, name):
    monkeypatch.setenv(profile.VARIABLE, name)
    chosen = profile.current()
    assert chosen.name == name
    assert chosen.sweep_ranks[0] == 1 and chosen.ranks in chosen.sweep_ranks
    assert chosen.sweep_epochs >= 2 and chosen.repeats >= 2


def test_counts_of_a_sweep():
    assert profile.PROFILES["laptop"].sweep_ranks == [1, 2, 4]
    assert profile.PROFILES["cluster"].sweep_ranks == [1, 2, 4, 8]


def test_an_unknown_profile_is_named(monkeypatch):
    monkeypatch.setenv(profile.VARIABLE, "huge")
    with pytest.raises(ValueError, match="WORKSHOP_PROFILE='huge' .* quick, laptop, cluster"):
        profile.current()
