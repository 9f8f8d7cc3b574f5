"""Keep the device fed: order, sources, tiers, and the loader over them."""
