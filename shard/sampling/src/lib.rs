//! Sampling at the tail: penalties, filters, random numbers, logprobs.
