"""A site's own policy, the `[policy]` table of party.toml: which terms this site takes part under.

Promises: `permit` is asked before any row is read, whatever the aggregator says of the terms; every rule is
checked against the terms and the signers of a model in them alone, and a person is asked last, about terms
that every other rule allows. Until a site names parties, analysts and columns, or approves terms (`fedboost
approve`), nothing is allowed.
Refuses: terms that break a rule, with one sentence that names the site, the key, its value and what to do
(Refused). The names a site allows stay at the site: they are in the error's `detail`.
"""

from collections.abc import Callable, Iterator

from fedboost.errors import Refused
from fedboost.people.summary import summary
from fedboost.people.text import delimited
from fedboost.protocol.site import Limits
from fedboost.runtime.site import policy_rules
from fedboost.runtime.site.policy_breach import Breach
from fedboost.runtime.site.policy_keys import COMMAND, PolicyKeys
from fedboost.runtime.site.policy_models import UNCHECKED, ModelSigners, origin_of
from fedboost.terms.terms import Terms


class Policy(PolicyKeys):
    """The terms this site takes part under, by its keys and their rules."""

    def permit(
        self,
        terms: Terms,
        party: str,
        ask: Callable[[str], bool] | None = None,
        analyst: str = "",
        signers: ModelSigners = UNCHECKED,
    ) -> Limits:
        """Return the limits of all sessions over these rows. Refused unless this policy, of the site called
        `party`, allows the terms.

        analyst: who signed the request, '' where nothing is signed. ask: called with a summary of the terms
        if approval is "ask"; returns True if the person agrees. None where there is nobody to ask. It may
        raise Refused itself. signers: of the model that the terms measure.
        """
        if broken := [*self.breaches(terms, analyst, party, signers)]:
            raise broken[0].refusal(party, broken if terms.vertical.predicts else ())
        if self.approval == "ask":
            self._ask(terms, party, ask, analyst, signers)
        return Limits(
            self.max_sessions, self.similar_groups, self.max_predicted_rows, self.max_splits, self.min_count
        )

    def breaches(
        self, terms: Terms, analyst: str = "", party: str = "", signers: ModelSigners = UNCHECKED
    ) -> Iterator[Breach]:
        """Every rule that the terms break at the site called `party`, but for approval by a person."""
        return policy_rules.breaches(self, terms, analyst, party, signers)

    def _ask(
        self,
        terms: Terms,
        party: str,
        ask: Callable[[str], bool] | None,
        analyst: str,
        signers: ModelSigners,
    ) -> None:
        refused = f'site {party} refuses: its policy has approval = "ask", and '
        if ask is None:
            raise Refused(f"{refused}nobody can be asked; run there `{COMMAND}`")
        try:
            who = f"\nAnalyst {delimited(analyst)} asks for this session." if analyst else ""
            origin = origin_of(self, terms, party, signers)
            agreed = ask(summary(terms, (analyst,) if analyst else (), origin=origin) + who)
        except Refused as error:
            raise Refused(f"{refused}{error.public}; run there `{COMMAND}`") from None
        if not agreed:
            raise Refused(f"{refused}the person asked said no to the terms with digest {terms.digest}")
