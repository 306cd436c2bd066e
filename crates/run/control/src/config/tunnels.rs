//! How the configuration names the UDP ports of tunnels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strata_wire::tunnel::{TunnelKind, Tunnels, TunnelsError};

/// UDP ports of tunnels; `None` for the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct TunnelsConfig {
    /// Destination ports of VXLAN (RFC 7348). By default, 4789 and 8472.
    pub vxlan: Option<Vec<u16>>,
    /// Destination ports of VXLAN-GPE, with IPv4, IPv6, Ethernet, NSH or MPLS inside. By default,
    /// 4790.
    pub vxlan_gpe: Option<Vec<u16>>,
    /// Destination ports of GENEVE (RFC 8926). By default, 6081.
    pub geneve: Option<Vec<u16>>,
    /// Source or destination ports of GTP-U (3GPP TS 29.281). By default, 2152.
    pub gtp_u: Option<Vec<u16>>,
    /// Destination ports of GRE in UDP (RFC 8086). By default, 4754.
    pub gre_udp: Option<Vec<u16>>,
    /// Destination ports of MPLS in UDP (RFC 7510). By default, 6635.
    pub mpls_udp: Option<Vec<u16>>,
    /// Source or destination ports of Teredo, IPv6 in UDP (RFC 4380). By default, 3544.
    pub teredo: Option<Vec<u16>>,
}

impl TunnelsConfig {
    /// The table of ports.
    ///
    /// # Errors
    ///
    /// If a port is 0 or that of two tunnels, or there are too many.
    pub fn table(&self) -> Result<Tunnels, TunnelsError> {
        let lists = [
            (TunnelKind::Vxlan, &self.vxlan),
            (TunnelKind::VxlanGpe, &self.vxlan_gpe),
            (TunnelKind::Geneve, &self.geneve),
            (TunnelKind::GtpU, &self.gtp_u),
            (TunnelKind::GreUdp, &self.gre_udp),
            (TunnelKind::MplsUdp, &self.mpls_udp),
            (TunnelKind::Teredo, &self.teredo),
        ];
        let lists = lists.into_iter();
        let given = lists.filter_map(|(kind, ports)| Some((kind, ports.clone()?)));
        Tunnels::default().with(&given.collect::<Vec<_>>())
    }
}
