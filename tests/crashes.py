"""Real processes that are killed or stopped in the middle of a training, and started again.

`crashed` trains over gRPC with keys while it kills, at random moments, the aggregator or a party; the model
must be the one of an undisturbed training.
"""

import dataclasses
import random
import threading
import time

from fedboost.shell.loopback import Loopback


def bare(model):
    """The model file without signatures, which are another every time."""
    return dataclasses.replace(model, attestations={}, session=b"").to_bytes()


class Followed(threading.Thread):
    """An analyst who follows a training to its end: `rounds` so far, then `model`, or `error`."""

    def __init__(self, analyst, terms):
        super().__init__(daemon=True)
        self.rounds, self.model, self.error = 0, None, None
        self._training = analyst.train(terms, wait=120)
        self.start()

    def run(self):
        try:
            for row in self._training:
                self.rounds = int(row["round"]) + 1
            self.model = self._training.model
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error

    def wait_for(self, rounds, seconds=120):
        """Until so many rounds are done, or the training is over."""
        end = time.monotonic() + seconds
        while self.rounds < rounds and self.is_alive():
            assert time.monotonic() < end, f"round {self.rounds} for {seconds} s"
            time.sleep(0.002)

    def end(self, seconds=120):
        """The model."""
        self.join(seconds)
        assert not self.is_alive(), "the training does not end"
        if self.error:
            raise self.error
        return self.model


def crashed(folder, files, terms, kills, seed, policy):
    """The model after so many kills; from four on everybody of three parties is among the victims. `files`:
    party to its table."""
    draw = random.Random(seed)
    after = sorted(draw.sample(range(terms.rounds), kills))
    everybody = ["aggregator", *files]
    victims = [*everybody, *draw.choices(everybody, k=kills)][:kills]
    draw.shuffle(victims)
    with Loopback(folder, files, policy=policy) as one:
        training = Followed(one.analyst, terms)
        for victim, rounds in zip(victims, after, strict=True):
            training.wait_for(rounds)
            time.sleep(draw.uniform(0, 0.1))
            process = one.aggregator if victim == "aggregator" else one.parties[victim]
            process.kill()
            process.wait()
            if victim == "aggregator":
                one.start_aggregator()
            else:
                one.start_party(victim)
        return training.end()
