"""Terms that are signed, submitted to a console, and over."""

from sites import fedboost

from fedboost.runtime.tasks import terms_to_toml

API = "/api/v1"


def signed(folder, agreed, *options):
    """The content of the file that `fedboost sign` writes."""
    (folder / "terms.toml").write_text(terms_to_toml(agreed))
    end = fedboost("sign", folder / "terms.toml", "--out", folder / "signed.json", "--force", *options)
    assert end.code == 0, end.err
    return (folder / "signed.json").read_bytes()


def submit(console, data, role="analyst"):
    """The console's answer to a submission."""
    return console.ask(f"{API}/sessions", "POST", data, role=role)


def ended(console, role="viewer"):
    """The sessions that are over."""
    sessions = console.ask(f"{API}/sessions", role=role).json
    return [each for each in sessions if each["state"] in ("done", "failed")]
