"""The four systems of the field notes, trained the slow way that each note describes; they import no Stoker.

Each script has `parse(words)` and `train(args)`, which makes a step each time that it is asked for the next
one and gives back how many samples it had. `turn.py` measures them, `stoker doctor SCRIPT --data …` examines
them. Their models are those of `stoker.workloads`, weight by weight, which a test holds them to.
"""
