"""Speech datasets: log-mel features of Speech Commands and of your own folders of wav files."""
