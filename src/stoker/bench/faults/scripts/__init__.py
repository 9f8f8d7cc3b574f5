"""What the campaign's processes run, besides the verbs."""
