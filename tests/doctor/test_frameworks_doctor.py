"""The doctor on loops that a framework runs: what starves them is found, and what they could do without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.doctor.ceilings import OF_THE_LOADER

ITEMS = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)

class Items(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        time.sleep(0.008)  # off the CPU, as a slow store is
        return {"x": torch.full((64,), float(index)), "labels": torch.zeros(1)}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    def forward(self, x, labels):
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}
"""
LOOPS = {
    "lightning": """
import lightning

class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch, batch_idx):
        return self.net(**batch)["loss"]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=50, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Lit(), DataLoader(Items(), batch_size=8))
""",
    "transformers": """
from transformers import Trainer, TrainingArguments

if __name__ == "__main__":
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, num_train_epochs=50, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True,
    )
    Trainer(Net(), arguments, train_dataset=Items()).train()
""",
    "accelerate": """
from accelerate import Accelerator

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Items(), batch_size=8))
    for epoch in range(50):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
""",
}


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.parametrize("framework", LOOPS)
def test_a_starved_loop_of_a_framework_is_told_what_starves_it(tmp_path: Path, framework: str) -> None:
    """Samples take 8 ms each, made by the loop itself: a cause of the input, and the model's own rate."""
    pytest.importorskip(framework)
    (tmp_path / "train.py").write_text(ITEMS + LOOPS[framework])
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "doctor", "--json", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["cause"] in OF_THE_LOADER, found
    assert found["ceilings"]["compute"] is not None, found["not_measured"]
    assert found["ceilings"]["compute"] > 2 * found["rate"]
