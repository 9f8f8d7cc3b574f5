"""What the chains of `stoker bench resumes` come to: its figures and its page. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from stoker.bench.page import number, origin, table
from stoker.bench.result import Result
from stoker.bench.resumes_draws import FRESH, STEADY
from stoker.bench.resumes_judge import LIMIT
from stoker.bench.resumes_places import PLACES
from stoker.bench.resumes_task import BATCH, EPOCHS, SAMPLES, STEPS
from stoker.feed.choice import TIERS

# By whom it hit, in words.
BLOWS = {
    "rank": "kill -9 of one rank",
    "all": "kill -9 of all ranks and their readers",
    "reader": "kill -9 of a reading process",
    "staging": "kill -9 of a staging",
    "stop one": "SIGTERM to one rank",
    "stop all": "SIGTERM to all ranks",
}
FELL = {
    "save": "a checkpoint being written",
    "prune": "old checkpoints being removed",
    "restore": "a checkpoint being looked for and read",
    "disk": "rows being written to the cache on disk",
    "ram": "rows being written to the node's memory",
    "copy": "a file being staged",
    "epoch": "the end of an epoch, validation included",
    "step": "forward, backward or update",
    "start": "start-up, before the first epoch is entered",
    "wait": "between two steps",
}
# Between a start and the next of the same chain.
CHANGES = {"ranks": "ranks", "way": "way", "micro_batch": "micro-batch", "workers": "readers"}
# All of them must be 0.
WRONG = {
    "lost": "samples lost",
    "doubled": "samples doubled",
    "misplaced": "updates made of other samples than the one left alone",
    "uneven": "samples with another weight than the others of their update",
    "damaged": "samples or staged files that were not whole",
    "off": "updates in a checkpoint amid the chain that are not those of the one left alone",
    "back": "steps that a checkpoint went back",
    "stop_lost": "steps that a SIGTERM lost",
    "exact_off": "exact losses and weights with other bits",
    "bits_off": "losses, weights and states with other bits where ranks and micro-batch stayed",
    "log_again": "lines that stand twice in a log",
    "failed": "starts that ended wrongly, or not at all",
}


def figures_of(chains: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The counts over all chains."""
    events = [event for chain in chains for event in chain["events"]]
    starts = [start for chain in chains for start in chain["starts"]]
    verdicts = [chain["verdict"] for chain in chains if chain["verdict"] is not None]
    tiers = Counter(start["tier"] for start in starts)
    hits, fell = (Counter(event[name] for event in events) for name in ("blow", "fell"))
    found: dict[str, float] = {
        "resumes_events": len(events),
        "resumes_chains": len(chains),
        "resumes_chains_steady": sum(chain["steady"] for chain in chains),
        "resumes_starts": len(starts),
        "resumes_starts_fresh": sum(start["fresh"] for start in starts),
    }
    found |= {f"resumes_hit_{_key(kind)}": hits[kind] for kind in BLOWS}
    found |= {f"resumes_fell_{place}": fell[place] for place in PLACES}
    found |= {f"resumes_starts_{tier}": tiers[tier] for tier in TIERS}
    found |= {f"resumes_changed_{_key(name)}": _count_changes(chains, name) for name in CHANGES}
    found |= {
        "resumes_samples": sum(verdict["samples"] for verdict in verdicts),
        "resumes_steps_again": sum(_count_again(event) for event in _trained(events)),
        "resumes_direct_rows": sum(start["direct"] for start in starts),
        "resumes_forced": sum(event["forced"] for event in _trained(events)),
    }
    found |= {
        f"resumes_{name}": sum(verdict[name] for verdict in verdicts)
        for name in ("lost", "doubled", "misplaced", "uneven", "exact_compared", "exact_off", "bits_compared")
    }
    stops = [event for event in _trained(events) if event["stopped"]]
    found |= {
        "resumes_bits_off": sum(verdict["bits_off"] or 0 for verdict in verdicts),
        "resumes_log_again": sum(verdict["again"] for verdict in verdicts),
        "resumes_damaged": sum(event["damaged"] for event in events),
        "resumes_off": sum(event["off"] for event in _trained(events)),
        "resumes_back": sum(event["back"] for event in _trained(events)),
        "resumes_stop_lost": sum(_count_again(event) for event in stops),
        "resumes_failed": sum(chain["failed"] is not None for chain in chains),
        "resumes_plain_limit": LIMIT,
    }
    if verdicts:
        found["resumes_plain_off_max"] = max(verdict["plain_off"] for verdict in verdicts)
    return found


def wrongs_of(figures: Mapping[str, float]) -> list[str]:
    """What is not as it must be, in words."""
    wrong = [
        f"{figures[f'resumes_{name}']:g} {text}" for name, text in WRONG.items() if figures[f"resumes_{name}"]
    ]
    if figures.get("resumes_plain_off_max", 0.0) > LIMIT:
        wrong.append(
            f"plain losses or weights off by {figures['resumes_plain_off_max']:.2g}, limit {LIMIT:g}"
        )
    return wrong


def _trained(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event["blow"] != "staging"]


def _count_again(event: Mapping[str, Any]) -> int:
    """Steps that were made, and are in no checkpoint."""
    return max(0, int(event["reached"]) - int(event["kept"]))


def _count_changes(chains: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(one[name] != other[name] for chain in chains for one, other in pairwise(chain["starts"]))


def _key(words: str) -> str:
    return words.replace(" ", "_")


def page(results: Sequence[Result]) -> str:
    """What was done, where it fell, and what became of it."""
    parts = [
        "# Killed, stopped, resumed: the samples counted\n",
        f"Trainings of {STEPS} steps ({EPOCHS} epochs of {SAMPLES} samples, batches of {BATCH}) by "
        "`stoker.train` on a `Feed`, each broken off at random again and again and gone on with: with other "
        "ranks (1, 2, 4), another way for the samples to come, another micro-batch, other readers. An event "
        "is one such end of a start. Every sample that entered an update is counted by its number: the "
        "gradient of a weight of its own says so, which the training writes into its checkpoints.\n",
        "**When losses and weights are the same to the bit.** One part of the model has sums that are exact "
        "in any order: its losses, weights, momenta and running means must be those of one rank left alone, "
        "whatever was changed. The other part is ordinary float32. Where ranks and micro-batch stayed "
        f"(each {STEADY}th chain, with dropout), all that a checkpoint keeps must be the same to the bit as "
        "without the kills, generators included, though the way of the samples and the readers change. Where "
        "they changed, sums have another order: its losses and weights must be "
        f"within {LIMIT:g} of the largest.\n",
        f"Ranks are forked by a server that has imported torch; every {FRESH}th start, and with a card every "
        "one, is of new interpreters with spawned readers. Moments are aimed at places, after a random part "
        "of the time that is spent there, and counted by where the killed process was.\n",
        "`stoker bench resumes --state DIR --stop-after 600`, again until it is whole.\n",
    ]
    for result in results:
        figures = result.figures
        parts += [
            f"## {result.hardware}, {result.date}\n",
            f"{number(figures, 'resumes_events')} events in {number(figures, 'resumes_chains')} trainings, "
            f"{number(figures, 'resumes_chains_steady')} of them with ranks and micro-batch that stayed; "
            f"{number(figures, 'resumes_starts')} starts, {number(figures, 'resumes_starts_fresh')} of them "
            f"of new interpreters. {number(figures, 'resumes_samples')} samples had to enter an update, once "
            f"each; {number(figures, 'resumes_steps_again')} steps were made again after a kill, and count "
            "once.\n",
            table(["must be 0", "found"], _rows(figures, "resumes", WRONG)),
            f"{number(figures, 'resumes_exact_compared')} exact losses and weights were compared, and "
            f"{number(figures, 'resumes_bits_compared')} of all kinds where ranks and micro-batch stayed. "
            f"The plain ones were off by {_small(figures, 'resumes_plain_off_max')} at most.\n",
            table(["hit", "events"], _rows(figures, "resumes_hit", BLOWS)),
            table(["where it fell", "events"], _rows(figures, "resumes_fell", FELL)),
            table(["changed from start to start", "times"], _rows(figures, "resumes_changed", CHANGES)),
            f"Where the feed held its samples: {_tiers(figures)} starts, the others ended before their first "
            f"epoch. {number(figures, 'resumes_direct_rows')} rows were read past the page cache. "
            f"{number(figures, 'resumes_forced')} ranks whose fellow had died did not end by themselves or "
            "when asked to, and were killed as torchrun would have done.\n",
            origin(result) + "\n",
        ]
    return "\n".join(parts)


def _tiers(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{tier} {number(figures, f'resumes_starts_{tier}')}" for tier in TIERS)


def _rows(figures: Mapping[str, float], prefix: str, words: Mapping[str, str]) -> list[list[str]]:
    return [[text, number(figures, f"{prefix}_{_key(name)}")] for name, text in words.items()]


def _small(figures: Mapping[str, float], key: str) -> str:
    return f"{figures[key]:.2g}" if key in figures else "n/a"
