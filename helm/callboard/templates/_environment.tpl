{{/* A number of values comes as a float: 1000000 must not become 1e+06. */}}
{{- define "callboard.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* One variable out of a Secret: {name, secret, key}. */}}
{{- define "callboard.fromSecret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end -}}

{{- define "callboard.redisUrl" -}}
{{- $name := include "callboard.fullname" . -}}
{{- if .Values.redis.bundled.enabled }}
{{- include "callboard.fromSecret" (dict "name" "REDIS_PASSWORD" "secret" (printf "%s-bundled" $name) "key" "redis-password") }}
- name: REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ $name }}-redis:6379/0
{{- else }}
{{- include "callboard.fromSecret" (dict "name" "REDIS_URL" "secret" (.Values.redis.existingSecret | default $name) "key" (empty .Values.redis.existingSecret | ternary "REDIS_URL" .Values.redis.existingSecretKey)) }}
{{- end }}
{{- end -}}

{{/* {root, secret}: `secret` is the one to take a URL of the values from. */}}
{{- define "callboard.databaseUrl" -}}
{{- $values := .root.Values.database -}}
{{- $name := include "callboard.fullname" .root -}}
{{- if $values.bundled.enabled }}
{{- include "callboard.fromSecret" (dict "name" "POSTGRES_PASSWORD" "secret" (printf "%s-bundled" $name) "key" "postgresql-password") }}
- name: DATABASE_URL
  value: postgresql://callboard:$(POSTGRES_PASSWORD)@{{ $name }}-postgresql:5432/callboard
{{- else }}
{{- include "callboard.fromSecret" (dict "name" "DATABASE_URL" "secret" ($values.existingSecret | default .secret) "key" (empty $values.existingSecret | ternary "DATABASE_URL" $values.existingSecretKey)) }}
{{- end }}
{{- end -}}

{{- define "callboard.sentryDsn" -}}
{{- with .Values.sentry -}}
{{- if or .dsn .existingSecret }}
{{- include "callboard.fromSecret" (dict "name" "SENTRY_DSN" "secret" (.existingSecret | default (include "callboard.fullname" $)) "key" (empty .existingSecret | ternary "SENTRY_DSN" .existingSecretKey)) }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "callboard.smtpLogin" -}}
{{- with .Values.smtp -}}
{{- if or .username .existingSecret }}
{{- $secret := .existingSecret | default (include "callboard.fullname" $) }}
{{- include "callboard.fromSecret" (dict "name" "CALLBOARD_SMTP_USERNAME" "secret" $secret "key" (empty .existingSecret | ternary "smtp-username" .usernameKey)) }}
{{ include "callboard.fromSecret" (dict "name" "CALLBOARD_SMTP_PASSWORD" "secret" $secret "key" (empty .existingSecret | ternary "smtp-password" .passwordKey)) }}
{{- end }}
{{- end -}}
{{- end -}}
