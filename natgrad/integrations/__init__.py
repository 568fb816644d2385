"""natgrad inside other libraries, and other libraries inside natgrad."""
