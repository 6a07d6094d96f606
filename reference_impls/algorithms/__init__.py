"""A file a mechanism, composed from compressors, aggregators and schedules; each reads like its papers' algorithm boxes."""
