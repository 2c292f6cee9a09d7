package org.lunarsan.iscsi.login;

/**
 * A name and the secret that proves it.
 *
 * <p>Threads: immutable.
 *
 * @param user CHAP_N
 * @param secret the secret with which CHAP_R is computed
 */
public record Credential(String user, Secret secret) {
}
