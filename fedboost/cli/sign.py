"""`fedboost sign`: terms that an analyst signs, as a file to submit.

Promises: the file is good for one session under these very terms; no key is in it.
Refuses: a file that exists, without --force (ConfigError).
"""

from pathlib import Path
from typing import Annotated

import typer

from fedboost.cli.options import Force, InsecureLoopback, Keys, TermsFile

EPILOG = "Example: fedboost sign terms.toml --keys keys/marie --out signed.json"


def sign(
    terms: TermsFile,
    out: Annotated[Path, typer.Option(help="Where to write the signed terms.", show_default=False)],
    keys: Keys = None,
    insecure_loopback: InsecureLoopback = False,
    force: Force = False,
) -> None:
    """Sign terms, for the console of an aggregator: who has the file can submit them once, within 30 days,
    and cannot change them."""
    from fedboost.cli.output import notice
    from fedboost.errors import ConfigError
    from fedboost.runtime.config import choose_keys
    from fedboost.runtime.files import check_writable, write_atomically
    from fedboost.runtime.signed_model import sign_terms, to_json
    from fedboost.runtime.terms_file import read_terms

    check_writable(out, terms, force=force)
    agreed = read_terms(terms)
    if not agreed.parties:
        raise ConfigError(f'{terms}: names no parties; add parties = ["north", "south"]')
    bundle = choose_keys(keys, "analyst", "127.0.0.1:0", insecure_loopback)
    write_atomically(out, to_json(agreed, None) if bundle is None else sign_terms(agreed, bundle), 0o600)
    signer = "nobody, for an aggregator without keys" if bundle is None else f"analyst {bundle.signer.name!r}"
    notice(f"{out}: terms {agreed.digest[:12]}..., signed by {signer}")
