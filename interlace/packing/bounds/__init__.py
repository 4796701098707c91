"""What no scheduler can do better than with these profiles, and the price of one more request.

Every request that ends in time is in a batch with L(b, p) <= SLO, and only ``attainment`` of each
rate must. Valid for any scheduler that cuts accelerators into their legal shares, as long as
running side by side never speeds a model up, a larger share is never slower, rows beyond the
largest measured batch gain nothing, and batches take the measured quantile that plans count on. The
gathering bound counts on random arrivals as well, with the demand's coefficient of variation.
Models must be resident to be served. Models that no share serves within the SLO are left out, and
named.
"""

from interlace.packing.bounds.bound import Bound, LowerBound
from interlace.packing.bounds.lower import lower_bound

__all__ = ["Bound", "LowerBound", "lower_bound"]
