"""ImageNet-100: class folders of JPEGs, on disk or in an object store, and ResNet-50."""

from stoker.train.task import Workload
from stoker.workloads.imagenet.config import ImagenetConfig
from stoker.workloads.imagenet.task import ImagenetTask

WORKLOAD = Workload(
    name="imagenet",
    about="ResNet-50 on some classes of ImageNet, from a folder or an object store",
    config=ImagenetConfig,
    task=ImagenetTask,
)

__all__ = ["WORKLOAD", "ImagenetConfig", "ImagenetTask"]
