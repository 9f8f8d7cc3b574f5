"""What a caller wants: a small BERT, from scratch, by the transformers Trainer."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Calls(Dataset):
    def __init__(self, count):
        made = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1, 1000, (count, 32), generator=made)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0]) % 5}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=1000, hidden_size=160, num_hidden_layers=2, num_attention_heads=4, intermediate_size=448,
        num_labels=5,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="intents", per_device_train_batch_size=16, max_steps=6000, logging_steps=200,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, dataloader_num_workers=1, seed=0,
    )  # fmt: skip
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=Calls(4000)).train()


if __name__ == "__main__":
    main()
