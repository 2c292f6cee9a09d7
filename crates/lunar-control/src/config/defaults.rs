//! Defaults of settings that consist of several values.

use lunar_iscsi::text::Offer;
use lunar_target::Portal;
use std::net::{Ipv4Addr, SocketAddr};

/// The default portal.
pub fn default_portal() -> Portal {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, lunar_initiator::PORT_DEFAULT));
    Portal::new(listen)
}

/// The default parameters that targets negotiate.
pub fn default_offer() -> Offer {
    Offer::target()
}
