"""Studies made once for a claim: gradients as training makes them, one exchange of a method, what it costs and loses."""
