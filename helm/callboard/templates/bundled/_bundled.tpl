{{/*
A password of the bundled servers: {root, given, key}. Made once and read back from the cluster at every upgrade: the server
keeps the first one on its volume. Where it can't be read back, another one would lock everybody out.
*/}}
{{- define "callboard.bundledPassword" -}}
{{- $secret := lookup "v1" "Secret" .root.Release.Namespace (printf "%s-bundled" (include "callboard.fullname" .root)) -}}
{{- $kept := get ($secret.data | default dict) .key -}}
{{- if .given -}}
{{- .given -}}
{{- else if $kept -}}
{{- $kept | b64dec -}}
{{- else if .root.Release.IsUpgrade -}}
{{- fail (printf "The password of the bundled server (%s) is not in the cluster: set it in the values" .key) -}}
{{- else -}}
{{- randAlphaNum 32 -}}
{{- end -}}
{{- end -}}

{{/* One pod with a volume: {root, component, values, port, env, args, mountPath, probe}. */}}
{{- define "callboard.bundledServer" -}}
{{- $name := printf "%s-%s" (include "callboard.fullname" .root) .component -}}
{{- $who := dict "root" .root "name" $name "component" .component -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "callboard.metadata" $who | nindent 2 }}
spec:
  selector:
    {{- include "callboard.selector" $who | nindent 4 }}
  ports:
    - {name: server, port: {{ .port }}, targetPort: server}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "callboard.metadata" $who | nindent 2 }}
spec:
  replicas: 1
  serviceName: {{ $name }}
  selector:
    matchLabels:
      {{- include "callboard.selector" $who | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "callboard.selector" $who | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {{ .user }}
        runAsGroup: {{ .user }}
        fsGroup: {{ .user }}
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: {{ .component }}
          image: {{ .values.image }}
          {{- with .args }}
          args:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          env:
            {{- include "callboard.fromSecret" (dict "name" .passwordName "secret" (printf "%s-bundled" (include "callboard.fullname" .root)) "key" (printf "%s-password" .component)) | nindent 12 }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: server, containerPort: {{ .port }}}
          startupProbe:
            exec: {command: {{ toJson .probe }}}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            tcpSocket: {port: server}
            periodSeconds: 10
            failureThreshold: 6
          readinessProbe:
            exec: {command: {{ toJson .probe }}}
            periodSeconds: 5
          {{- include "callboard.containerSecurity" .root | nindent 10 }}
          volumeMounts:
            - {name: data, mountPath: {{ .mountPath }}}
            - {name: tmp, mountPath: /tmp}
            {{- with .runPath }}
            - {name: run, mountPath: {{ . }}}
            {{- end }}
          {{- include "callboard.resources" .values.resources | nindent 10 }}
      volumes:
        - name: tmp
          emptyDir: {}
        {{- if .runPath }}
        - name: run
          emptyDir: {}
        {{- end }}
  {{- if .values.storage }}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        resources:
          requests:
            storage: {{ .values.storage }}
  {{- else }}
        - name: data
          emptyDir: {}
  {{- end }}
{{- end -}}

{{- define "callboard.bundledPolicy" -}}
{{- $who := dict "root" .root "name" (printf "%s-%s" (include "callboard.fullname" .root) .component) "component" .component -}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "callboard.metadata" $who | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "callboard.selector" $who | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - from:
        - podSelector:
            matchLabels:
              app.kubernetes.io/name: callboard
              app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
      ports:
        - {protocol: TCP, port: server}
{{- end -}}
