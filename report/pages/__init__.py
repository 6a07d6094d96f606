"""Pages that no study owns, and what they share: claims, comparisons, scaling, rate and distortion, the cost model."""
