"""Other packages as models, one file each; a package is imported when its model is made."""
