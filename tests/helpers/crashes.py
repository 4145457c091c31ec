"""Real processes that are killed or stopped in the middle of a training, and started again.

`crashed` trains over gRPC with keys while it kills, at random moments, the aggregator or a party; `stopped`
lets a party sleep. The model must be the one of an undisturbed training.
"""

import dataclasses
import os
import random
import signal
import threading
import time

from fedboost.runtime.local.cluster import LocalCluster

LAST = 3
"""Nobody is killed on purpose in so many of the last rounds, so that the training goes on after each kill."""


def bare(model):
    """The model file without signatures, which are another every time."""
    return dataclasses.replace(model, attestations={}, session=b"").to_bytes()


class Followed(threading.Thread):
    """An analyst who follows a training to its end: `rounds` so far, then `model`, or `error`."""

    def __init__(self, analyst, terms):
        super().__init__(daemon=True)
        self.rounds, self.model, self.error = 0, None, None
        self.moments = []
        """When each round was heard of, and the end."""
        self._training = analyst.train(terms, wait=120)
        self.start()

    def run(self):
        try:
            for row in self._training:
                self.rounds = int(row["round"]) + 1
                self.moments.append(time.monotonic())
            self.model = self._training.model
            self.moments.append(time.monotonic())
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


def crashed(folder, files, terms, kills, seed, policy, among=None, state=None):
    """The model after so many kills, how many there were before the training was over, and the seconds from
    a restart to what the analyst heard next, where nobody else was killed meanwhile. From four kills on
    everybody of three parties is among the victims. `files`: party to its table; `among`: who may be killed,
    else everybody; state: the folder of their memories."""
    draw = random.Random(seed)
    after = sorted(draw.sample(range(terms.trees.rounds - LAST), kills))
    everybody = among or ["aggregator", *files]
    victims = [*everybody, *draw.choices(everybody, k=kills)][:kills]
    draw.shuffle(victims)
    restarts = []
    with LocalCluster(folder, files, policy=policy, state=state) as one:
        training = Followed(one.analyst, terms)
        for victim, rounds in zip(victims, after, strict=True):
            training.wait_for(rounds)
            time.sleep(draw.uniform(0, 0.05))
            if not training.is_alive():
                break
            process = one.aggregator if victim == "aggregator" else one.parties[victim]
            process.kill()
            process.wait()
            restarts.append(time.monotonic())
            if victim == "aggregator":
                one.start_aggregator()
            else:
                one.start_party(victim)
        model = training.end()
    assert len(training.moments) == terms.trees.rounds + 1
    ends = [*restarts[1:], float("inf")]
    heard = [min((m for m in training.moments if m > restart), default=restart) for restart in restarts]
    recoveries = [h - r for r, h, end in zip(restarts, heard, ends, strict=True) if h < end]
    return model, len(restarts), recoveries


def stopped(folder, files, terms, seconds, policy):
    """The model of a training in which a party's process sleeps for that many seconds, and the seconds from
    its awakening to what the analyst heard next."""
    with LocalCluster(folder, files, policy=policy) as one:
        training = Followed(one.analyst, terms)
        training.wait_for(terms.trees.rounds // 3)
        sleeper = one.parties[next(iter(files))].pid
        os.kill(sleeper, signal.SIGSTOP)
        try:
            time.sleep(seconds)
            assert training.rounds < terms.trees.rounds, "the training went on without a party"
        finally:
            os.kill(sleeper, signal.SIGCONT)
        awake = time.monotonic()
        model = training.end()
    return model, min(m for m in training.moments if m > awake) - awake
