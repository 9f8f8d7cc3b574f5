"""Topics of papers in a citation graph: two graph convolutions over all of it, each step."""

import torch
from torch import nn

PAPERS, CITATIONS, WORDS, TOPICS = 2700, 10_500, 600, 7


class GCN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.first = nn.Linear(WORDS, hidden, bias=False)
        self.second = nn.Linear(hidden, TOPICS, bias=False)

    def forward(self, words, graph):
        hidden = torch.relu(torch.sparse.mm(graph, self.first(words)))
        hidden = nn.functional.dropout(hidden, 0.5, self.training)
        return torch.sparse.mm(graph, self.second(hidden))


def normalised():
    ends = torch.randint(PAPERS, (2, CITATIONS))
    loops = torch.arange(PAPERS).repeat(2, 1)
    ends = torch.cat([ends, ends.flip(0), loops], 1)
    degree = torch.bincount(ends[0], minlength=PAPERS).float()
    weight = (degree[ends[0]] * degree[ends[1]]).rsqrt()
    return torch.sparse_coo_tensor(ends, weight, (PAPERS, PAPERS)).coalesce()


torch.manual_seed(0)
graph = normalised()
words = (torch.rand(PAPERS, WORDS) < 0.02).float()
topics = torch.randint(TOPICS, (PAPERS,))
known = torch.rand(PAPERS) < 0.1
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(10_000):
    loss = nn.functional.cross_entropy(model(words, graph)[known], topics[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 100 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
