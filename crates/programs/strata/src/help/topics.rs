//! `strata help TOPIC`: what several commands have in common, on a screen each.

use std::io::Write as _;
use std::process::ExitCode;

use strata_terminal::output::standard;
use strata_terminal::{logging, program};

/// Topics, and what they say.
const TOPICS: [(&str, &str); 5] = [
    (
        "filters",
        "\
Filters are written as for tcpdump (pcap-filter(7)), and mean the same: with -i, tcp also matches
packets with one VLAN tag, as with tcpdump -i on Linux; in files and logs, tcp matches only untagged
packets, and 'vlan and tcp' tagged ones. Filters go after all options:

  strata record -i eth0 -o log/ not port 22
  strata export log/ -w web.pcapng 'tcp port 80 or tcp port 443'

  host 192.0.2.7, net 10.0.0.0/8       either end; src or dst before it: one end
  port 53, portrange 6000-6010         either end; of one protocol only: tcp port 80
  tcp, udp, icmp, icmp6, arp, ip6      a protocol
  ether host 02:00:00:00:00:01         an address of the link layer
  vlan 7, mpls 16, pppoes, geneve      the rest of the filter applies inside
  greater 1000, len <= 64              lengths on the wire
  tcp[tcpflags] & tcp-syn != 0         bytes of a header
  not, and, or, ( )                    quote parentheses and < > for the shell

read, grep, top, export and ask also know named networks. Options give the names, or [names] in the
configuration file (STRATA_CONFIG):

  tag dmz                              networks on lines such as '10.0.0.0/8 dmz' (--names FILE)
  country DE, src asn 64500            networks in a database such as GeoLite2 (--mmdb FILE)

A filter on a log sees only the bytes that were kept: a test of payload does not match packets of
which only headers were kept.

See also: strata help times; strata export --help.
",
    ),
    (
        "granularities",
        "\
A granularity is the amount of a packet that is kept. A model gives each packet a class, and the
mode gives each class a granularity:

  full             every captured byte
  header           up to the end of the innermost transport header, options included
  partial 128      the header, and the 128 bytes after it
  drop             nothing
  header 1/10      sampled: one packet in ten
  header 1/10 flows   one flow in ten, whole

Without your own model, a budget of detail decides which packets of any class get more than headers.
With such a model, or with --detail none, the mode decides:

  mode          anomalous     benign         for
  default       full          header         normal use
  log-all       full          full           when something is badly wrong
  log-partial   partial 128   header         when payloads take too much bandwidth
  log-sampled   full          header 1/10    when the packet rate or the disk is the limit
  log-minimum   partial 128   header 1/10    the smallest log

  strata record -i eth0 -o log/ --mode log-all 'port 5060'
  strata mode set log-all --for 10m --why 'outage in building 7'

See also: strata help budgets; docs/recording.md.
",
    ),
    (
        "budgets",
        "\
A budget of detail limits the payload kept beyond headers. It goes to short flows and to the start
of the others, regardless of the model. Headers are kept in any case.

  10%              a share of the payload, as it was on the wire
  50MB/s           a rate by packet timestamps; with 20GB/day, a quiet night saves for the day
  none             no budget: everything that the mode keeps of each class

  strata record -i eth0 -o log/ --detail 20GB/day
  strata detail 5% --why 'the disk is small'

Without your own model (-m), the budget is 10%; with such a model, none. Payload that policies,
alerts and --first-bytes keep is outside the budget.

See also: strata help granularities; docs/detail.md.
",
    ),
    (
        "times",
        "\
Points in time, as in --from and --to (the end is not included):

  13:05, 13:05:30            local time (TZ), on the day of the first packet of the log
  2026-01-31T13:05           local time
  2026-01-31T13:05:00Z       UTC; with +01:00, of that zone
  1769864700.25              seconds since 1970

Lengths of time, as in --keep and --for: a whole number and s, m or min, h, d or w, as in 90s,
10m, 12h, 30d, 8w.

Sizes: digits, optionally with k, M, G, T (1000), Ki, Mi, Gi, Ti (1024), and B: 500G, 64MiB. As in
tcpdump, a bare number means millions of bytes with -C, and KiB with -B.

  strata export log/ --from 13:05 --to 13:20 -w - | wireshark -k -i -

See also: strata help filters.
",
    ),
    (
        "keys",
        "\
Compacted files of a log can be encrypted with age (age-encryption.org): the machine that records
has the public key only, and cannot read what it has written.

  strata key new analysts.key                  # prints the public key, age1...
  strata compact log/ --encrypt-to age1...     # from now on
  strata export log/ --key analysts.key -w all.pcapng
  strata key rotate log/ --old analysts.key --new age1...

STRATA_KEY names the file with the secret key for all commands that read a log. If the key is lost,
encrypted files cannot be read again. Block files, which are not compacted yet, are not encrypted.

See also: strata key --help; docs/storage.md.
",
    ),
];

/// The names of the topics.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|(name, _)| *name)
}

/// Prints the page, if the command line is `help TOPIC`.
pub(crate) fn run() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [help, topic] = words.as_slice() else {
        return None;
    };
    let (_, page) = TOPICS
        .iter()
        .find(|(name, _)| help == "help" && name == topic)?;
    logging::begin(None);
    let written = standard().write_all(page.as_bytes());
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => program::failed(&error.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strata_filter::{Filter, Naming, NetworkNames, NetworkSet};
    use strata_policy::DetailBudget;
    use strata_terminal::text::{duration_ns, parse_time};
    use strata_wire::parse_bytes;

    use super::*;

    #[test]
    fn a_topic_fits_a_screen() {
        for (name, page) in TOPICS {
            assert!(page.lines().count() <= 40, "{name}");
            assert!(page.lines().all(|line| line.len() <= 100), "{name}");
        }
    }

    /// Every name is that of all addresses.
    struct AllNames;

    impl NetworkNames for AllNames {
        fn networks(&self, _: Naming, _: &str) -> Result<Arc<NetworkSet>, String> {
            let all = NetworkSet::new(vec![[0, u32::MAX]], vec![[0, u128::MAX]]);
            Ok(Arc::new(all))
        }
    }

    /// The words of the first column, up to two spaces.
    fn examples(topic: &str) -> Vec<&'static str> {
        let (_, page) = TOPICS.iter().find(|(name, _)| *name == topic).unwrap();
        let lines = page.lines().filter(|line| line.starts_with("  "));
        let lines = lines.filter(|line| !line.contains("strata "));
        lines
            .filter_map(|line| line.trim_start().split_once("  "))
            .map(|(first, _)| first)
            .collect()
    }

    #[test]
    fn what_the_topics_name_is_accepted() {
        let mut filters = 0;
        for line in examples("filters") {
            if line.starts_with("not,") {
                continue;
            }
            let of_names = line.contains("tcp,").then(|| line.split(", ").collect());
            for filter in of_names.unwrap_or_else(|| line.split(", ").collect::<Vec<_>>()) {
                let parsed = Filter::parse_with(filter, &AllNames);
                parsed.unwrap_or_else(|error| panic!("{filter}: {error}"));
                filters += 1;
            }
        }
        assert!(filters > 15, "{filters}");
        for budget in examples("budgets").iter().filter(|one| **one != "none") {
            budget
                .parse::<DetailBudget>()
                .unwrap_or_else(|_| panic!("{budget}"));
        }
        for times in examples("times") {
            for time in times.split(", ") {
                parse_time(time, 1_769_864_700_000_000_000).unwrap();
            }
        }
        for length in ["90s", "10m", "12h", "30d", "8w", "3min"] {
            duration_ns(length).unwrap();
        }
        for size in ["500G", "64MiB"] {
            parse_bytes(size).unwrap();
        }
    }
}
