//! Who is enrolled: names, certificates, and their end.

use super::{AgentRecord, Change, Fingerprint, Registry, RegistryError, kind};
use crate::limits::AGENTS_MAX;
use crate::message::check_name;

impl Registry {
    /// Whether an agent of this name, which has shown the token, may get a certificate at this time
    /// (seconds since 1970).
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn may_enrol(&self, name: &str, now: u64) -> Result<(), RegistryError> {
        self.may_enrol_as(false, name, now)
    }

    /// Whether an agent, or a collector, may.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn may_enrol_as(
        &self,
        is_collector: bool,
        name: &str,
        now: u64,
    ) -> Result<(), RegistryError> {
        check_name(name)?;
        let known = self.agents.get(name).map(|agent| &agent.record);
        match known {
            Some(known) if known.is_collector != is_collector => Err(RegistryError::OtherKind {
                name: name.to_owned(),
                has: known.kind(),
                wants: kind(is_collector),
            }),
            Some(known) if known.revoked => Err(RegistryError::Revoked(name.to_owned())),
            Some(known) if known.until > now => Err(RegistryError::Taken(name.to_owned())),
            Some(_) => Ok(()),
            None if self.agents.len() >= AGENTS_MAX => Err(RegistryError::Full),
            None => Ok(()),
        }
    }

    /// What has this name: `an agent` or `a collector`.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&'static str> {
        self.agents.get(name).map(|agent| agent.record.kind())
    }

    /// An agent of this name has got a first certificate.
    ///
    /// # Errors
    ///
    /// As [`Registry::may_enrol`].
    pub fn enrolled(
        &mut self,
        name: &str,
        certificate: Fingerprint,
        until: u64,
        now: u64,
    ) -> Result<Vec<Change>, RegistryError> {
        self.enrolled_as(false, name, certificate, until, now)
    }

    /// An agent, or a collector, of this name has got a first certificate.
    ///
    /// # Errors
    ///
    /// As [`Registry::may_enrol`].
    pub fn enrolled_as(
        &mut self,
        is_collector: bool,
        name: &str,
        certificate: Fingerprint,
        until: u64,
        now: u64,
    ) -> Result<Vec<Change>, RegistryError> {
        self.may_enrol_as(is_collector, name, now)?;
        if let Some(agent) = self.agents.get(name) {
            for old in &agent.record.certificates {
                self.by_certificate.remove(old);
            }
        }
        let record = AgentRecord {
            name: name.to_owned(),
            certificates: vec![certificate],
            until,
            revoked: false,
            is_collector,
        };
        self.remember(record.clone());
        Ok(vec![Change::Agent(record)])
    }

    /// Whose certificate this is.
    ///
    /// # Errors
    ///
    /// If it is not an agent's, or that of an agent that is revoked.
    pub fn who(&self, certificate: &Fingerprint) -> Result<&str, RegistryError> {
        let name = self.by_certificate.get(certificate);
        let agent = name.and_then(|name| self.agents.get(name));
        let agent = agent.ok_or(RegistryError::Unknown)?;
        match agent.record.revoked {
            true => Err(RegistryError::Revoked(agent.record.name.clone())),
            false => Ok(&agent.record.name),
        }
    }

    /// An agent has got another certificate. The one with which it asked is good until it uses the new
    /// one: the answer may be lost.
    ///
    /// # Errors
    ///
    /// As [`Registry::who`].
    pub fn renewed(
        &mut self,
        asked_with: &Fingerprint,
        certificate: Fingerprint,
        until: u64,
    ) -> Result<Vec<Change>, RegistryError> {
        let name = self.who(asked_with)?.to_owned();
        let known = self.agents.get(&name).ok_or(RegistryError::Unknown)?;
        let mut record = known.record.clone();
        for old in record.certificates.iter().filter(|old| *old != asked_with) {
            self.by_certificate.remove(old);
        }
        record.certificates = vec![*asked_with, certificate];
        record.until = until;
        self.remember(record.clone());
        Ok(vec![Change::Agent(record)])
    }

    /// Refuses an agent from now on. Until it is forgotten, it has its identities.
    ///
    /// # Errors
    ///
    /// If there is no agent of that name.
    pub fn revoke(&mut self, name: &str) -> Result<Vec<Change>, RegistryError> {
        let agent = self.agents.get_mut(name);
        let agent = agent.ok_or_else(|| RegistryError::NoAgent(name.to_owned()))?;
        if agent.record.revoked {
            return Ok(Vec::new());
        }
        agent.record.revoked = true;
        let mut changes = vec![Change::Agent(agent.record.clone())];
        // From now on it gets no keys: with which it has them is known best now.
        for identity in agent.identities.values() {
            changes.extend(self.numbers.spend(*identity, ""));
        }
        Ok(changes)
    }

    /// Forgets an agent: its certificates, and the identities of its interfaces.
    ///
    /// # Errors
    ///
    /// If there is no agent of that name.
    pub fn forget(&mut self, name: &str) -> Result<Vec<Change>, RegistryError> {
        let agent = self.agents.remove(name);
        let agent = agent.ok_or_else(|| RegistryError::NoAgent(name.to_owned()))?;
        for certificate in &agent.record.certificates {
            self.by_certificate.remove(certificate);
        }
        let mut changes = vec![Change::AgentGone(name.to_owned())];
        for identity in agent.identities.values() {
            self.numbers.taken.remove(identity);
            if !agent.record.revoked {
                changes.extend(self.numbers.spend(*identity, ""));
            }
        }
        self.numbers.forget(name);
        Ok(changes)
    }
}
