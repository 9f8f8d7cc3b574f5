"""Runs with nothing to cure: twenty-one scripts of many kinds, and three that are bound by their compute.

A batch of one or two tensors takes 1.2 to 2.8 ms from a worker into the loop on two slow cores, by itself:
for every tensor a file descriptor goes through a socket, 0.5 ms with its handshake. Steps of those that have
workers are therefore 28 to 50 ms, so that nobody loses a tenth of them to that.
"""

from stoker.ward.case import Case, Data

PETS = Data(maker="photos.py", args=("pets", "--count", "600"))
SHARDS = Data(maker="shards.py", args=("shards", "--shards", "8", "--images", "512"))


def _healthy(script: str, variant: str, *, needs: tuple[str, ...] = (), data: tuple[Data, ...] = ()) -> Case:
    name = script.removesuffix(".py").replace("_", "-")
    return Case(id=f"healthy-{name}", script=script, cause="healthy", variant=variant, needs=needs, data=data)


HEALTHY = (
    _healthy("digit_strokes.py", "images: a small convolutional classifier"),
    _healthy("pet_folder.py", "images: JPEGs in folders", needs=("package:PIL",), data=(PETS,)),
    _healthy("vessel_outlines.py", "images: segmentation by a U-Net"),
    _healthy("mapped_images.py", "images: an autoencoder over mapped shards", data=(SHARDS,)),
    _healthy("face_latents.py", "images: a variational autoencoder"),
    _healthy("film_reviews.py", "text: bags of words"),
    _healthy("poem_model.py", "text: a language model without a loader"),
    _healthy("credit_table.py", "tabular, by index"),
    _healthy("ring_gan.py", "a GAN: two optimizers"),
    _healthy("pole_balance.py", "reinforcement learning, no loader"),
    _healthy("spoken_words.py", "audio"),
    _healthy("citation_graph.py", "a graph, whole in every step"),
    _healthy("film_ratings.py", "recommendations by embeddings"),
    _healthy("power_demand.py", "a time series"),
    _healthy("wine_lightning.py", "Lightning", needs=("package:lightning",)),
    _healthy("intent_trainer.py", "the transformers Trainer", needs=("package:transformers",)),
    _healthy("steel_accelerate.py", "Accelerate", needs=("package:accelerate",)),
    _healthy("lens_curves.py", "L-BFGS: several passes in a step"),
    _healthy("dialect_sums.py", "accumulation of four batches"),
    _healthy("turbine_compiled.py", "a compiled model, one shape"),
    _healthy("log_stream.py", "an iterable dataset"),
)

COMPUTE_BOUND = (
    Case(
        id="compute-bound-noise",
        script="noise_steps.py",
        cause="compute-bound",
        variant="dense layers that use both cores",
        lookalikes=(13,),
    ),
    Case(
        id="compute-bound-classes",
        script="scene_classes.py",
        cause="compute-bound",
        variant="convolutions, with a loader that keeps up",
    ),
    Case(
        id="compute-bound-melodies",
        script="curriculum_notes.py",
        cause="compute-bound",
        variant="steps that take longer because there is more in them",
        lookalikes=(9,),
    ),
)

CASES = (*HEALTHY, *COMPUTE_BOUND)
