"""Cases of several processes that train together, on CPUs: two of them, and four.

Four ranks on two cores take turns at them, and each waits for a core as long as it has one. That is all of
them alike, so that a rank late for its own reason is still told by what it spends beyond the others.
"""

from stoker.ward.case import Case, Neutral, Setup

LAST_AT_WORK = "the last rank's rows take longer to prepare"
AMONG_OBJECTS = "the last rank's garbage is collected among half a million objects"
# Of a machine with two cores; where there are more, each rank has one, and the second's is the busy one.
NEIGHBOUR = (Setup(name="busy_core", value=1),)
# The last rank has a core beside four others' work; three ranks share the rest.
CROWD = (Setup(name="busy_core", value=-1),) * 4

STRAGGLER = (
    Case(
        id="straggler-data",
        script="advert_ranks.py",
        cause="straggler",
        cure="rank_data",
        variant=LAST_AT_WORK,
        lookalikes=(8,),
        ranks=2,
        neutral=Neutral(args=("--mixing", "0")),
    ),
    Case(
        id="straggler-data-4",
        script="advert_ranks.py",
        args=("--mixing", "28"),
        cause="straggler",
        cure="rank_data",
        variant=f"{LAST_AT_WORK}, of four",
        lookalikes=(8,),
        ranks=4,
        neutral=Neutral(args=("--mixing", "0")),
    ),
    Case(
        id="straggler-gc",
        script="phrase_pairs.py",
        cause="straggler",
        cure="scheduled_gc",
        variant=AMONG_OBJECTS,
        ranks=2,
        neutral=Neutral(args=("--memory", "0")),
    ),
    Case(
        id="straggler-gc-4",
        script="phrase_pairs.py",
        cause="straggler",
        cure="scheduled_gc",
        variant=f"{AMONG_OBJECTS}, of four",
        ranks=4,
        neutral=Neutral(args=("--memory", "0")),
    ),
    Case(
        id="straggler-host",
        script="advert_ranks.py",
        args=("--mixing", "0", "--pin"),
        cause="straggler",
        cure="rank_host",
        variant="the last rank shares its core with another process",
        needs=("cores>=2",),
        setup=NEIGHBOUR,
        ranks=2,
        neutral=Neutral(setup=()),
    ),
    Case(
        id="straggler-host-4",
        script="advert_ranks.py",
        args=("--mixing", "0", "--pin"),
        cause="straggler",
        cure="rank_host",
        variant="of four ranks, two to a core, two share theirs with another process",
        needs=("cores>=2",),
        setup=NEIGHBOUR,
        ranks=4,
        neutral=Neutral(setup=()),
    ),
    Case(
        id="straggler-host-one-4",
        script="advert_ranks.py",
        args=("--mixing", "0", "--apart"),
        cause="straggler",
        cure="rank_host",
        variant="the last of four ranks has a core with four other processes, the rest share the others",
        needs=("cores>=2",),
        setup=CROWD,
        ranks=4,
        neutral=Neutral(setup=()),
    ),
)

INTERCONNECT = (
    Case(
        id="interconnect-link",
        script="river_levels.py",
        cause="interconnect",
        cure="link",
        variant="gradients of 0.4 MB over 200 Mbit/s",
        lookalikes=(8,),
        ranks=2,
        setup=(Setup(name="link", value=200),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="interconnect-link-4",
        script="river_levels.py",
        cause="interconnect",
        cure="link",
        variant="the same of four ranks over 800 Mbit/s",
        ranks=4,
        setup=(Setup(name="link", value=800),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="interconnect-rank-4",
        script="river_levels.py",
        args=("--interface", "net{}"),
        cause="interconnect",
        cure="rank_link",
        variant="of four ranks the second sends and receives at 100 Mbit/s, the others at 10 Gbit/s",
        lookalikes=(8,),
        ranks=4,
        setup=(Setup(name="rank_link", value=100),),
        neutral=Neutral(setup=(Setup(name="rank_link", value=10_000),)),
    ),
    Case(
        id="interconnect-wide",
        script="river_levels.py",
        args=("--width", "512", "--rows", "128"),
        cause="interconnect",
        cure="link",
        variant="gradients of 1.3 MB over 800 Mbit/s",
        ranks=2,
        setup=(Setup(name="link", value=800),),
        neutral=Neutral(setup=()),
    ),
    Case(
        id="interconnect-sums",
        script="river_levels.py",
        args=("--sums", "4"),
        cause="interconnect",
        cure="no_sync",
        variant="four all-reduces a step where one would do, over 1 Gbit/s",
        ranks=2,
        setup=(Setup(name="link", value=1000),),
        neutral=Neutral(args=("--sums", "4", "--quiet")),
    ),
)

# All ranks alike: nobody is late, whatever each of them loses. Pollen's pictures are standardised for more
# than looks: a block of that size once freed, glibc keeps what activations leave, where otherwise it gave
# them back to the system each step, on one rank and not on the other by chance: up to 40% more of a forward
# pass.
ALIKE = (
    Case(
        id="no-overlap-ranks",
        script="advert_ranks.py",
        args=("--mixing", "0", "--rest", "0.001"),
        cause="no-overlap",
        variant="every rank waits as long for its rows",
        lookalikes=(8,),
        ranks=2,
        neutral=Neutral(args=("--mixing", "0")),
    ),
    Case(
        id="no-overlap-ranks-4",
        script="advert_ranks.py",
        args=("--mixing", "0", "--rest", "0.002"),
        cause="no-overlap",
        variant="the same of four ranks",
        ranks=4,
        neutral=Neutral(args=("--mixing", "0")),
    ),
    Case(
        id="healthy-pollen-ranks",
        script="pollen_ranks.py",
        cause="healthy",
        variant="two ranks with as much to do, and little to tell each other",
        needs=("cores>=2",),
        lookalikes=(8,),
        ranks=2,
    ),
    Case(
        id="compute-bound-pollen-ranks-4",
        script="pollen_ranks.py",
        cause="compute-bound",
        variant="four ranks with as much to do, on as many cores as there are",
        needs=("cores>=2",),
        lookalikes=(8,),
        ranks=4,
    ),
)

CASES = (*STRAGGLER, *INTERCONNECT, *ALIKE)
