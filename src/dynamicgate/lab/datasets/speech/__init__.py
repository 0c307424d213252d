"""Speech: log-mel features of Speech Commands and of folders of your own wav files."""
