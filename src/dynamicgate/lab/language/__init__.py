"""Small language models: text as numbers, a GPT whose feed-forward layers take gates, its training and its costs."""
