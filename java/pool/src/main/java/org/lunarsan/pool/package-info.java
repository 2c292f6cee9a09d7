/** Devices joined: striped and mirrored. */
package org.lunarsan.pool;
