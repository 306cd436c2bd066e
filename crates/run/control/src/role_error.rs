//! What goes wrong here, for roles.

use strata_role::RoleError;

use crate::agents::agent_client::AgentClientError;
use crate::api::ListenError;
use crate::config::{ConfigError, EndpointError};

macro_rules! own {
    ($($error:ty)*) => { $(
        impl From<$error> for RoleError {
            fn from(error: $error) -> Self {
                Self::own(error)
            }
        }
    )* };
}

own! { AgentClientError ListenError ConfigError EndpointError }
