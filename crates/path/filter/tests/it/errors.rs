//! The error messages for wrong filters.

use strata_filter::Filter;
use strata_wire::LinkType;

fn message(expression: &str) -> String {
    Filter::parse(expression).expect_err(expression).to_string()
}

fn refusal(expression: &str, link: LinkType) -> String {
    Filter::parse(expression)
        .expect(expression)
        .compile(link)
        .expect_err(expression)
        .to_string()
}

#[test]
fn the_position_is_marked() {
    assert_eq!(
        message("tcp port 70000"),
        "a port is a number from 0 to 65535, not 70000\n  tcp port 70000\n           ^~~~~"
    );
    assert_eq!(
        message("ip and"),
        "the filter ends too early: expected a test, such as 'host 192.0.2.1' or 'tcp port \
         80'\n  ip and\n        ^"
    );
    let error = Filter::parse("ip and hots 192.0.2.1").expect_err("a typing error");
    assert_eq!(error.span(), 7..11);
    assert_eq!(error.expression(), "ip and hots 192.0.2.1");
}

#[test]
fn messages_say_what_to_do() {
    for (expression, words) in [
        ("host www.example.com", "names are not resolved"),
        ("net localnet", "names are not resolved"),
        ("ether host router", "names are not resolved"),
        ("gateway router", "ether host <MAC> and not host <IP>"),
        (
            "192.0.2.1",
            "'host', 'net', 'port', 'src', 'dst' or 'proto'",
        ),
        ("net 192.0.2.1/24", "write 192.0.2.0"),
        ("net 2001:db8::1/64", "write 2001:db8::/64"),
        ("net 10.0.0.0/33", "at most 32"),
        ("host 10.0.0.0/8", "needs 'net'"),
        ("host 1.2.3.256", "256 is more than 255"),
        ("host 02:00:00:00:00:01", "'ether' before it"),
        ("tcp host 192.0.2.1", "'tcp and host 192.0.2.1'"),
        ("ip6 host 192.0.2.1", "use 'ip' here"),
        ("ip host ::1", "use 'ip6' here"),
        ("port 80-90", "write 'portrange 80-90'"),
        ("port frobnicate", "write the port as a number"),
        ("udp port http", "registered for tcp only"),
        ("icmp port 80", "only tcp, udp and sctp have ports"),
        ("ip proto tcp", "needs a backslash: \\tcp"),
        ("ip proto frobnicate", "write its number"),
        ("port 08", "octal"),
        ("len = 4294967296", "32 bits"),
        ("ip[0:3] = 1", "1, 2 or 4 bytes, not 3"),
        ("ip[0]", "compare it"),
        ("len / 0 = 1", "division by zero"),
        ("isis[0] = 1", "cannot be addressed"),
        ("vlan 4096", "at most 4095"),
        ("ip6 broadcast", "IPv6 has no broadcast"),
        (
            "ip tcp",
            "expected 'and', 'or' or the end of the filter, found 'tcp'",
        ),
        ("(ip", "expected ')'"),
        ("lane", "not supported"),
        ("byte 0 = 1", "link[offset]"),
        ("host 192.0.2.1 # office", "'#' has no meaning"),
        (
            "type mgt subtype ack",
            "'ack' is not the name of an 802.11 subtype",
        ),
        ("llc foo", "sabme"),
        ("decnet host 1.2", "DECnet addresses are not supported"),
        ("tcp port 80 and (81 or port 82)", "repeat the keyword"),
        ("tcp or 80", "needs a word before it"),
    ] {
        let message = message(expression);
        assert!(message.contains(words), "{expression}: {message}");
    }
}

#[test]
fn link_types_say_why() {
    assert_eq!(
        refusal("tcp and ether host 02:00:00:00:00:01", LinkType::RAW),
        "'ether host 02:00:00:00:00:01' cannot be tested on RAW: MAC addresses are in Ethernet, \
         802.11 and FDDI headers only"
    );
    for (expression, link, words) in [
        ("vlan", LinkType::PPP, "VLAN tags"),
        ("inbound", LinkType::ETHERNET, "Linux cooked"),
        ("ifindex 1", LinkType::LINUX_SLL, "v2"),
        ("type mgt", LinkType::ETHERNET, "802.11"),
        ("mpls and arp", LinkType::ETHERNET, "only IPv4 and IPv6"),
        ("pppoes and vlan", LinkType::ETHERNET, "PPP inside PPPoE"),
        ("radio[0] = 1", LinkType::ETHERNET, "no radio header"),
        ("tcp", LinkType(147), "link type 147"),
        ("len / ip[1] = 1", LinkType(147), "link[...]"),
    ] {
        let message = refusal(expression, link);
        assert!(message.contains(words), "{expression}: {message}");
    }
}

#[test]
fn odd_texts_are_shown() {
    let long = format!("{} and frob", vec!["ip"; 100].join(" and "));
    let message = message(&long);
    assert!(
        message.contains("  ...") && message.ends_with("^~~~"),
        "{message}"
    );
    let message = Filter::parse("host é\u{7}")
        .expect_err("no address")
        .to_string();
    assert!(!message.contains('\u{7}'), "{message}");
}
