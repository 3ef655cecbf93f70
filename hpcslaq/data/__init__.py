"""Real data sets and users' files, converted once into memory-mappable caches."""
