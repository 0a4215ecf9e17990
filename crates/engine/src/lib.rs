//! Does what policy decides: executor, lanes, tiers, requests.
