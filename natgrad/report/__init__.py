"""What a study leaves behind: a folder, its figures and one self-contained page."""
