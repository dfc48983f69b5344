//! The RoCE v2 transport engine: queue pairs, completions, retransmission, RPC verbs.
