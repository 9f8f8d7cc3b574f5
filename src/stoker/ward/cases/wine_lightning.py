"""Quality of wine with Lightning."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Wine(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(11, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(),
                                    nn.Linear(1600, 6))  # fmt: skip

    def training_step(self, batch, batch_idx):
        wine, quality = batch
        return nn.functional.cross_entropy(self.layers(wine), quality)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    wines = torch.randn(20_000, 11)
    loader = DataLoader(
        TensorDataset(wines, wines[:, :6].argmax(1)),
        128,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    )
    trainer = lightning.Trainer(
        max_epochs=60, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Wine(), loader)


if __name__ == "__main__":
    main()
